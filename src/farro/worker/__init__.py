"""The worker and the watchdog, and how background services are started and supervised."""
