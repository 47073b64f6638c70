package tallymark;

import java.util.Arrays;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.MakeDecimal;
import org.apache.spark.sql.catalyst.expressions.UnscaledValue;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction;
import org.apache.spark.sql.catalyst.expressions.aggregate.Sum;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DecimalType;
import scala.Function1;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/**
 * Adds decimals as whole numbers if the sum of so many rows fits a long.
 *
 * Spark does the same for decimals of at most 8 digits, because it does not know the number of rows. Its sums of longer
 * decimals make several objects for each row.
 */
public final class LongSums extends AbstractPartialFunction {
    private static final int MOST_DIGITS = 18;
    /** By how many digits a sum is wider than its column in Spark. */
    private static final int WIDER = 10;
    private final int most;

    /** Rows are counted in digits: 3 for up to 999. */
    public LongSums(int digits) {
        most = MOST_DIGITS - digits;
    }

    public boolean isDefinedAt(Object expression) {
        return decimal(expression) != null;
    }

    public Object applyOrElse(Object expression, Function1 otherwise) {
        DecimalType type = decimal(expression);
        if (type == null) {
            return otherwise.apply(expression);
        }
        AggregateExpression sum = (AggregateExpression) expression;
        Expression value = (Expression) sum.aggregateFunction().children().head();
        Object inside = CollectionConverters.asScala(Arrays.asList(new Object[] {new UnscaledValue(value)})).toSeq();
        AggregateFunction whole = (AggregateFunction) sum.aggregateFunction().withNewChildren(
            (scala.collection.immutable.Seq) inside
        );
        AggregateExpression found = sum.copy(whole, sum.mode(), sum.isDistinct(), sum.filter(), sum.resultId());
        return new MakeDecimal(found, type.precision() + WIDER, type.scale());
    }

    private DecimalType decimal(Object expression) {
        if (!(expression instanceof AggregateExpression)) {
            return null;
        }
        AggregateFunction function = ((AggregateExpression) expression).aggregateFunction();
        if (!(function instanceof Sum)) {
            return null;
        }
        DataType type = ((Expression) function.children().head()).dataType();
        return type instanceof DecimalType && ((DecimalType) type).precision() <= most ? (DecimalType) type : null;
    }
}
