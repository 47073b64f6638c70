"""Hourly: apply what is in the topic now, then check the ledger. The position is in the database, not in Airflow."""

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG(
    "orders_to_shop",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1),
    catchup=False,  # a missed hour is in the topic still: the next run applies it
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=5)},
) as dag:
    run = BashOperator(
        task_id="run",
        bash_command="/opt/tallymark/bin/tallymark run /etc/tallymark/shop.toml --until caught-up --fail-on-dead",
        retries=0,  # a second try would see no new dead letter, and hide the failure
    )
    audit = BashOperator(
        task_id="audit",
        bash_command="/opt/tallymark/bin/tallymark audit --file /etc/tallymark/shop.toml",
    )
    run >> audit
