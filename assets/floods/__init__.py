"""Floods: what is declared (`model`, `parse`), what it will take (`plan`). Pure but for `measure`, which looks at the source."""
