"""Floods: declarations (`model`, `parse`) and forecasts (`plan`). Pure, except `measure`, which reads the source's metadata."""
