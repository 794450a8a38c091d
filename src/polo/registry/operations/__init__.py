"""What an operator does beside serving: copies that can be trusted, and a look at the patient."""
