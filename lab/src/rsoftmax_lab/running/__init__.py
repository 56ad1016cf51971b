"""Many runs, spread over processes or a cluster, that can be stopped and started again; and the file of their rows."""
