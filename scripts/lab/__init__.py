"""What tests, benches, loads and chaos share: supervisors as processes, a network between client
and server, control groups. Any of them may import it; it imports none of them."""
