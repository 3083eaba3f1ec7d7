"""Orders, and the charges that pay for them: an application of Flask and Flask-SQLAlchemy.

DATABASE_URL is like postgresql://shop@localhost/shop, and PROVIDER_URL that of a payment provider.
To run it:

    cmdbus init
    flask --app flask_app.web run
    cmdbus-supervise --app flask_app.handlers:registry
"""
