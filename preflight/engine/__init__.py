"""Turns a recording, rules and checks into outcomes, suppressions and a report, without side effects."""
