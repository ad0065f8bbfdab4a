"""`ivc place`: on which hosts the ranks of a job, or its machines, should be: see docs/profile.md."""
