"""Work that keeps the store tidy: recovery, folding and retention."""
