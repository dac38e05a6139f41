"""The daemon of one machine: starts and groups its workers, and never loads torch."""
