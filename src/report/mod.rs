//! What it means: tables become a summary that people read. All numbers come from tables.
