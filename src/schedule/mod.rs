//! When it runs: devices are leased, each attempt is a child process of its own, its end becomes an outcome.
