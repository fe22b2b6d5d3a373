"""What both doors share: the compile cache, execution in order, and the log of what happened."""
