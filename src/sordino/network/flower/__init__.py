"""The federation over Flower: its SuperLink carries our messages, its SuperNodes run our `ClientApp`.

Flower's clipping, noise and strategies are not used; what it adds is transport, TLS and nodes that prove who they are.
"""
