HOSTS = ["a"]
# PADDLE_PORT is elsewhere
