"""`ivc guard`: machines leave a host whose health fails, with the MPI jobs that run in them."""
