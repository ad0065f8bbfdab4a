"""Benchmarks: run the programs of `bench/`, compare paths fairly, judge the project's targets."""
