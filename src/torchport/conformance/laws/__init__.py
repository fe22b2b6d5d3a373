"""The laws of the contract, a module for each family."""
