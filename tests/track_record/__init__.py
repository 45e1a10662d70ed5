"""One test, at least, for each known defect of the servers whose work this one continues."""
