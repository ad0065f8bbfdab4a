"""`ivc place`: on which hosts the ranks of a job should be: see docs/profile.md."""
