"""The requests of OpenAI's API that this server answers, with fields of vLLM's and llama.cpp's, as their JSON."""

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from training.serving.fields import Described, Fields, Flag, ModelName, Neutral, Number, Text, Texts, Within
from training.serving.memory import LIKELIEST

MOST_STOPS = 4
MOST_LOGPROBS = 5
LONGEST_NGRAM = 1 << 16
CALLS = 'a list of {"id": …, "type": "function", "function": {"name": …, "arguments": …}}'
TOOLS = 'a list of {"type": "function", "function": {"name": …, "parameters": …}}'
CHOICES = 'none, auto, required or {"type": "function", "function": {"name": …}} with the name of a tool'
FORMS = 'the type text or json_object, or {"type": "json_schema", "json_schema": {"name": …, "schema": {…}}}'

Stop = Annotated[str, Field(min_length=1)]


class StreamOptions(Fields):
    """Fields of a stream's events besides the text."""

    include_usage: Flag = False
    include_obfuscation: Flag = False  # random padding, which this server never adds


class Generation(Fields):
    """Fields that requests for completions and chat share."""

    model: ModelName
    max_tokens: Annotated[int, Within(1, "tokens")] | None = None
    temperature: Number = 1.0
    top_p: Number = 1.0
    top_k: Annotated[int, Within(-1, "N_V")] = 0
    repetition_penalty: Number = 1.0
    no_repeat_ngram_size: Annotated[int, Within(0, LONGEST_NGRAM)] = 0
    frequency_penalty: Number = 0.0
    presence_penalty: Number = 0.0
    logit_bias: Annotated[dict[str, Number], Described("an object of token IDs and numbers")] | None = None
    n: Annotated[int, Within(1, "queue")] = 1
    stream: Flag = False
    stream_options: Annotated[StreamOptions, Described("an object with include_usage")] = StreamOptions()
    logprobs: Any = None
    stop: Annotated[
        Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)],
        Described(f"a text or at most {MOST_STOPS}, none of them empty"),
    ] = Field(default_factory=list)
    seed: Annotated[int, Within(-(2**63), 2**63 - 1)] | None = None
    user: Any = None


class CompletionRequest(Generation):
    """A request to /v1/completions."""

    prompt: Texts
    max_tokens: Annotated[int, Described("an integer")] = 16
    echo: Flag = False
    logprobs: Annotated[int, Within(0, MOST_LOGPROBS)] | None = None
    parse_special: Flag = True
    add_special_tokens: Flag = True
    keep_final_space: Flag = False
    best_of: Annotated[Any, Neutral(1)] = None
    suffix: Annotated[Any, Neutral("")] = None


class TextPart(Fields):
    """A part of a message."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["text"]
    text: str


def arguments_of(text: str) -> dict[str, Any] | str:
    """Return the arguments of a call, or the text of an object that was cut short. Raises ValueError for others."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = text if text.lstrip().startswith("{") else None
    if not isinstance(found, dict | str):
        raise ValueError("no object")
    return found


def _of_object(text: str) -> str:
    arguments_of(text)
    return text


class CalledFunction(Fields):
    """The function of a call."""

    model_config = ConfigDict(extra="allow")

    name: str
    arguments: Annotated[str, AfterValidator(_of_object), Described("an object, as JSON in a text")]


class Call(Fields):
    """A call of a tool."""

    model_config = ConfigDict(extra="ignore")

    id: str
    type: Literal["function"]
    function: CalledFunction


class Message(Fields):
    """A message of a conversation."""

    role: str
    content: Annotated[str | list[TextPart], Described("a text, or a list of text parts")] | None = None
    name: Text | None = None
    tool_calls: Annotated[list[Call], Described(CALLS)] = Field(default_factory=list)
    tool_call_id: Text | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, given: Any) -> Any:
        return {k: v for k, v in given.items() if v != []} if isinstance(given, dict) else given


class Function(Fields):
    """The function of a tool."""

    model_config = ConfigDict(extra="allow")

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Fields):
    """A tool that an answer may call."""

    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: Function


class Named(Fields):
    """The name of a function."""

    name: str


class ChosenTool(Fields):
    """A tool that has to be called."""

    type: Literal["function"]
    function: Named


Messages = Annotated[
    list[Annotated[Message, Described("an object with a role and a content")]],
    Field(min_length=1),
    Described("a list of at least one message"),
]


class ForTemplate(Fields):
    """Inputs of a chat template besides messages."""

    tools: Annotated[list[Tool], Described(TOOLS)] = Field(default_factory=list)
    tool_choice: Annotated[Literal["none", "auto", "required"] | ChosenTool, Described(CHOICES)] = "auto"
    parallel_tool_calls: Flag = True
    reasoning_effort: Text | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Described("an object of variables of the chat template")] = Field(
        default_factory=dict
    )

    @property
    def variables(self) -> dict[str, Any]:
        """The variables for the template."""
        effort = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        return self.chat_template_kwargs | effort


class AnswerSchema(Fields):
    """A schema that an answer has to follow."""

    model_config = ConfigDict(extra="ignore")

    of_answer: dict[str, Any] = Field(alias="schema")


class ResponseFormat(Fields):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: AnswerSchema | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> "ResponseFormat":
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("no schema")
        return self


class ChatRequest(ForTemplate, Generation):
    """A request to /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: Annotated[int, Within(1, "tokens")] | None = None
    logprobs: Flag = False
    top_logprobs: Annotated[int, Within(0, LIKELIEST)] = 0
    response_format: Annotated[ResponseFormat, Described(FORMS)] | None = None
    function_call: Annotated[Any, Neutral("none")] = None
    functions: Annotated[Any, Neutral([])] = None
    store: Annotated[Any, Neutral(False)] = None
    metadata: Annotated[Any, Neutral({})] = None
    modalities: Annotated[Any, Neutral(["text"])] = None
    service_tier: Annotated[Any, Neutral("auto", "default")] = None


class EmbeddingRequest(Fields):
    """A request to /v1/embeddings."""

    model: ModelName
    input: Texts
    encoding_format: Annotated[Literal["float", "base64"], Described("float or base64")] = "float"
    dimensions: Annotated[int, Within("d_e", "d_e")] | None = None
    user: Any = None


class TokenizeRequest(ForTemplate):
    """A request to /tokenize, of vLLM's: the tokens of a prompt or a conversation."""

    model: ModelName | None = None
    prompt: Text | None = None
    messages: Messages | None = None
    add_special_tokens: Flag = True
