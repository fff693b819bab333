"""Real engines: build.py builds and audits one, execute.py runs it."""
