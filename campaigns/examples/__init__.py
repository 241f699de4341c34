"""Small campaigns over stores that are none of ours: where to start when you write your own."""
