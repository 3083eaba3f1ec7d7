"""What the web server runs."""

import os
from decimal import Decimal
from typing import Any

from flask import Flask, abort, request
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.exc import IntegrityError

from cmdbus import CommandBus
from flask_app.models import Base, Charge, Order

db = SQLAlchemy(metadata=Base.metadata)


def create_app() -> Flask:
    url = os.environ["DATABASE_URL"]
    app = Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = url.replace("postgresql:", "postgresql+psycopg:", 1)
    db.init_app(app)
    with app.app_context():
        db.create_all()
    bus = CommandBus(url)
    charge = bus.sender("payments", "Charge", Charge)

    @app.post("/orders")
    def create_order() -> tuple[dict[str, Any], int]:
        body = request.get_json()
        number, amount = body["number"], Decimal(body["amount"])
        command_id = charge.options(connection=db.session).send(number, amount)
        db.session.add(Order(number=number, amount=amount, charge_id=command_id))
        try:
            db.session.commit()  # the order and its charge, or neither
        except IntegrityError:
            abort(409, f"there is an order {number} already")
        return {"number": number}, 201

    @app.get("/orders/<number>")
    def show_order(number: str) -> dict[str, Any]:
        order = db.get_or_404(Order, number)
        charged = bus.get("payments", order.charge_id)
        return {
            "number": number,
            "charge": charged and charged.status,
            "receipts": [payment.receipt for payment in order.payments],
        }

    return app
