"""``python -m benchmarks``. Light: every worker process that a peer spawns imports it again."""

if __name__ == "__main__":
    from benchmarks.command import main

    main()
