"""One live run: opens nodes, observes stage by stage, supervises ranks, writes the recording."""
