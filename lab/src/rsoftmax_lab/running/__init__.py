"""Many runs, spread over processes or a cluster, restartable; and the file of their rows."""
