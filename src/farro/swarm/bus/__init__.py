"""Adapters of the Bus port: `files` for one machine without a server, `amqp` on RabbitMQ.

What is sent lives in swarm; who sends it lives in the services and in component.
"""
