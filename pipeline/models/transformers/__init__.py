"""Language models of the library transformers, by the name of their class."""
