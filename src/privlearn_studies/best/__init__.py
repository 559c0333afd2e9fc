"""How accurate a target can be, with settings that nobody chose for the data at hand."""
