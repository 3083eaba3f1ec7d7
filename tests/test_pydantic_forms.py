"""Models of pydantic as they are sent: their own type reads them again, or they are refused."""

from typing import Annotated, Any

import pydantic
import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, SecretStr

from cmdbus import CommandBus
from cmdbus.data import decode, encode
from cmdbus.payloads.pydantic_models import check_version
from cmdbus.payloads.readers import reader_of
from cmdbus.worker.claims.outcomes import completed


class Read(BaseModel):
    amount: int = Field(validation_alias="in")


class Dumped(BaseModel):
    amount: int = Field(serialization_alias="out")


class ByName(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    amount: int = Field(validation_alias="in", serialization_alias="out")


class Chosen(BaseModel):
    amount: int = Field(validation_alias=AliasChoices("in", AliasPath("amount")))


class Shouted(BaseModel):
    model_config = ConfigDict(alias_generator=str.upper, extra="forbid")
    lines: list[Dumped]


class Numbers(pydantic.RootModel[list[int]]):
    pass


Opened = Annotated[SecretStr, pydantic.PlainSerializer(lambda secret: secret.get_secret_value())]


class Login(BaseModel):
    password: Opened


VALUES = [
    Dumped(amount=1),
    ByName(amount=1),
    Chosen.model_validate({"in": 1}),
    Numbers([1]),
    Login(password=SecretStr("x")),
    Login(password=SecretStr("")),
]


@pytest.mark.parametrize("value", VALUES)
def test_a_model_is_sent_under_names_by_which_it_is_read(value: BaseModel) -> None:
    assert reader_of(type(value))(decode(encode(value))) == value


@pydantic.dataclasses.dataclass
class Split:
    amount: int = Field(validation_alias="in", serialization_alias="out")


class Nested(BaseModel):
    lines: dict[str, list[Read | None]]


class Left(BaseModel):
    amount: int = Field(exclude=True)


class Deep(BaseModel):
    amount: int = Field(validation_alias=AliasPath("in", 0))


READ = "data is not JSON: Read.amount is dumped as 'amount', and read as 'in': give it one alias"


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (Read.model_validate({"in": 1}), READ),
        (Nested.model_validate({"lines": {"a": []}}), READ),
        (Split(**{"in": 1}), "Split.amount is dumped as 'out', and read as 'in'"),
        (Left(amount=1), "Left.amount is left out of what is dumped, and must be there to be read"),
        (Deep.model_validate({"in": [1]}), "dumped as 'amount', and read as a part of another"),
        (Shouted.model_validate({"LINES": []}), "Dumped.amount is dumped as 'out', and read as"),
    ],
)
def test_a_model_that_would_not_be_read_again_is_refused(value: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        encode(value)


class Account(BaseModel):
    logins: list[dict[str, SecretStr | None]]


def test_a_secret_is_refused_with_its_place_and_not_sent_as_asterisks() -> None:
    account = Account(logins=[{"a": None, "b": SecretStr("x")}])
    with pytest.raises(ValueError, match=r"Account.logins\[0\].b is a secret, of which pydantic"):
        encode(account)
    assert encode(Dumped(amount=1)) == '{"amount":1}'


def test_what_nothing_reads_again_is_dumped_as_it_is() -> None:
    """As results of handlers, which people and replies show."""
    account = Account(logins=[{"b": SecretStr("x")}])
    for value, form in [(Split(**{"in": 1}), {"out": 1}), (Dumped(amount=1), {"out": 1})]:
        assert completed(value).result == encode(form)
    assert completed(account).result == '{"logins":[{"b":"**********"}]}'


def test_a_sender_refuses_such_a_model_before_there_is_a_value(bus: CommandBus) -> None:
    with pytest.raises(ValueError, match=r"the sender of payments/Debit: Read.amount is dumped as"):
        bus.sender("payments", "Debit", Read)


def test_only_versions_of_pydantic_that_work_are_taken() -> None:
    check_version(pydantic.VERSION)
    check_version("2.5.0b1")
    with pytest.raises(ValueError, match=r"pydantic 2.4.2 is installed, and cmdbus takes models o"):
        check_version("2.4.2")
