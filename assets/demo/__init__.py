"""``headgate demo``: one flood from announcement to end, with live traffic all the time. Real data, real processes, no fakes."""
