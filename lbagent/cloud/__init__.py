"""Load balancers of Services: who makes them (providers), when (cloud/controller), and a plan of who would get what."""
