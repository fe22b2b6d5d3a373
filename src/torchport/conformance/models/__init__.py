"""Small models, and the three doors that they go through."""
