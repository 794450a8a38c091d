"""PoLO in other people's training loops: a file for each framework, imported where it is used."""
