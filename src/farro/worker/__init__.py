"""Services that run by themselves: worker, watchdog, and what starts and supervises them."""
