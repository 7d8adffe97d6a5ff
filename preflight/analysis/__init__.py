"""Pure explanations that the supervisor and checks share: culprits, link matrices, bisection, pairing."""
