"""How the tests are run: shared out among workers, some of them alone, and rows of injected faults tried again."""
