"""The command line: one file per subcommand, `main(argv)` returns the exit code."""
