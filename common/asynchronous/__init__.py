"""`AsyncCommandBus`, for programs on asyncio: the calls of CommandBus that send and read, with the
same rules. Imports `cmdbus.producer`; neither workers nor the supervisor load it."""
