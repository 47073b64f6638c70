"""Downloads and processes on this machine: jars, Java and the sandbox servers."""
