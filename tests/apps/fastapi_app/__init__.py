"""Accounts, and transfers between them: an application of FastAPI and asynchronous SQLAlchemy.

DATABASE_URL is like postgresql://bank@localhost/bank. To run it:

    cmdbus init
    uvicorn fastapi_app.web:app
    cmdbus-supervise --app fastapi_app.handlers:registry
"""
