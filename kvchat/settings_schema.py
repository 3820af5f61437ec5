"""The settings as one typed schema: defaults, ranges, names and help in both languages.

Flags, files, presets and the settings screen are made from it. Knows no model and no device, and
not how a value is read or written: that is `settings.py`'s.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from kvchat.units import GIB, MIB
from kvchat.wording import LANGUAGES, Language

Kind = Literal[
    "int", "float", "size", "choice", "text", "bool", "list", "layers", "texts", "formats"
]
# When a change takes effect: at once, with the next answer, in chats that are begun after it, or
# once the model is loaded again.
Applies = Literal["now", "next answer", "new chat", "reload"]
Group = Literal["memory", "formats", "shortage", "tiers", "model", "sampling", "documents", "chat"]


@dataclass(frozen=True, slots=True)
class Entry:
    """What one setting is, apart from its value. Sizes are bytes; `choices` serve `choice` and
    `list`, and are what is proposed for `formats`.

    `optional` settings may be None, which is written `auto`. `within`: the memory whose size a
    slider for a size ends at.
    """

    kind: Kind
    group: Group
    label: Mapping[Language, str]
    help: Mapping[Language, str]
    unit: str = ""
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    applies: Applies = "next answer"
    optional: bool = False
    within: Literal["", "device", "host"] = ""


def _entry(default: object, **about: Any) -> Any:
    label, help_ = about.pop("label"), about.pop("help")
    about["label"] = dict(zip(LANGUAGES, label, strict=True))
    about["help"] = dict(zip(LANGUAGES, help_, strict=True))
    return field(default=default, metadata={"entry": Entry(**about)})


# Keys and values of the KV cache, the most exact first; one name stands for both. These are what is
# proposed; keys and values may be in any two formats.
FORMAT_PAIRS = ("fp", "int8", "int6", "int8/int4", "int6/int4", "int5/int4", "int4", "int2", "fp8")
# optimum-quanto's, for comparison: no kernel reads them.
COMPARED = ("quanto4", "quanto2")
FORMAT_NAMES = tuple(
    dict.fromkeys(part for pair in (*FORMAT_PAIRS, *COMPARED) for part in pair.split("/"))
)
RUNGS = ("drop_idle", "shrink_chunk", "requantize", "offload", "evict", "truncate_turns")
ALL_RUNGS = (*RUNGS[:-1], "summarize", RUNGS[-1])  # what is not in RUNGS must be asked for


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, as they hold for one run. Made by `resolve`, changed by `changed`."""

    memory_budget: int | None = _entry(
        None,
        kind="size",
        group="memory",
        optional=True,
        unit="B",
        least=MIB,
        most=1024 * GIB,
        applies="now",
        within="device",
        label=("Memory budget", "메모리 예산"),
        help=(
            "The most that kvchat may use on the device: weights, KV cache and activations.",
            "kvchat이 장치에서 쓸 수 있는 최대 메모리(가중치, KV 캐시, 계산 공간)입니다.",
        ),
    )
    headroom: int | None = _entry(
        None,
        kind="size",
        group="memory",
        optional=True,
        unit="B",
        least=0,
        most=256 * GIB,
        applies="now",
        within="device",
        label=("Headroom", "여유선"),
        help=(
            "Memory always left free on the device for other programs.",
            "다른 프로그램을 위해 장치에 항상 비워 두는 메모리입니다.",
        ),
    )
    prefill_chunk: int = _entry(
        512,
        kind="int",
        group="memory",
        unit="tokens",
        least=16,
        most=8192,
        label=("Prefill chunk", "읽기 묶음"),
        help=(
            "Tokens read at a time. Smaller needs less memory while reading, and reads slower.",
            "한 번에 읽는 토큰 수입니다. 작을수록 읽는 동안 메모리를 덜 쓰고 느려집니다.",
        ),
    )
    seal_format: str = _entry(
        "fp",
        kind="formats",
        group="formats",
        choices=FORMAT_PAIRS,
        label=("KV format", "KV 형식"),
        help=(
            "How keys/values of older tokens are stored. FP: as computed. Fewer bits hold longer "
            "texts at some cost in quality; the newest tokens always stay as computed. The formats "
            "of optimum-quanto, for comparison only, are chosen on the command line.",
            "오래된 토큰의 키/값을 저장하는 형식입니다. FP는 계산한 그대로입니다. 비트가 적을수록 "
            "더 긴 글이 들어가지만 품질이 조금 떨어집니다. 최근 토큰은 항상 그대로 둡니다. "
            "비교용인 optimum-quanto 형식은 명령줄에서만 고릅니다.",
        ),
    )
    floor_format: str = _entry(
        "int6/int4",
        kind="formats",
        group="formats",
        choices=FORMAT_PAIRS,
        label=("Lowest KV format", "최저 KV 형식"),
        help=(
            "Stored text in fewer bits than this is read again instead of reused.",
            "이보다 적은 비트로 저장된 내용은 재사용하지 않고 다시 읽습니다.",
        ),
    )
    layer_formats: str = _entry(
        "",
        kind="layers",
        group="formats",
        applies="reload",
        label=("Lowest KV format of layers", "층별 최저 KV 형식"),
        help=(
            "Layers that are never stored in less, such as 0-1=int8, -1=fp/int8. Numbers count "
            "from 0, below 0 from the end; of what the KV format says and this the better holds.",
            "이보다 적은 비트로 저장하지 않을 층입니다. 예: 0-1=int8, -1=fp/int8. 번호는 0부터, "
            "음수는 끝에서부터 셉니다. KV 형식과 비교해 더 정확한 쪽을 씁니다.",
        ),
    )
    allow_unproven: bool = _entry(
        False,
        kind="bool",
        group="formats",
        label=("Allow formats that failed", "통과하지 못한 형식 허용"),
        help=(
            "Lets KV formats be chosen that failed on this model, and old text be stored in those "
            "and in formats that were not measured on it when memory is short.",
            "이 모델이 통과하지 못한 KV 형식도 고를 수 있게 하고, 메모리가 모자라면 이전 내용을 "
            "그런 형식이나 이 모델에서 측정하지 않은 형식으로도 저장하게 합니다.",
        ),
    )
    sink_tokens: int = _entry(
        64,
        kind="int",
        group="formats",
        unit="tokens",
        least=0,
        most=4096,
        label=("First tokens kept", "처음 토큰 유지"),
        help=(
            "The first tokens of a text stay as computed: much attention rests on them.",
            "글의 처음 토큰은 계산한 그대로 둡니다. 주의가 많이 몰리는 자리입니다.",
        ),
    )
    newest_tokens: int = _entry(
        0,
        kind="int",
        group="formats",
        unit="tokens",
        least=0,
        most=8192,
        label=("Newest tokens kept", "최근 토큰 유지"),
        help=(
            "At least so many of the newest tokens stay as computed where older ones are stored in "
            "less. INT8 keeps 64 in any case, fewer bits keep 256.",
            "오래된 토큰을 줄여 저장할 때 적어도 이만큼의 최근 토큰은 계산한 그대로 둡니다. INT8은 "
            "64개, 더 적은 비트는 256개를 언제나 그대로 둡니다.",
        ),
    )
    host_quota: int | None = _entry(
        None,
        kind="size",
        group="tiers",
        optional=True,
        unit="B",
        least=0,
        most=1024 * GIB,
        applies="now",
        within="host",
        label=("KV in system memory", "시스템 메모리의 KV"),
        help=(
            "System memory for what no longer fits on the device: it is read there, more slowly, "
            "instead of being given up. Empty: 4 GiB beside a GPU, none on a CPU, where it counts "
            "only under a memory budget and beside it. 0 is off.",
            "장치에 들어가지 않는 내용을 둘 시스템 메모리입니다. 버리지 않고 거기서 읽으며, 조금 "
            "느려집니다. 비워 두면 GPU에서는 4 GiB, CPU에서는 쓰지 않습니다. CPU에서는 메모리 "
            "예산이 있을 때 그 예산과 따로 셉니다. 0이면 끕니다.",
        ),
    )
    keep_originals: bool = _entry(
        False,
        kind="bool",
        group="tiers",
        label=("Keep originals", "원본 유지"),
        help=(
            "What is stored in fewer bits leaves its better copy in system memory, within that "
            "room, so that it can come back as it was.",
            "비트를 줄여 저장할 때 더 정확한 사본을 시스템 메모리의 자리 안에서 남겨, 나중에 "
            "그대로 되돌릴 수 있게 합니다.",
        ),
    )
    disk_quota: int = _entry(
        4 * GIB,
        kind="size",
        group="tiers",
        unit="B",
        least=0,
        most=1024 * GIB,
        applies="now",
        label=("KV on disk", "디스크의 KV"),
        help=(
            "Disk space for what was read and written, so that it is loaded instead of read "
            "again after a restart. The least recently used goes first; 0 is off.",
            "읽고 쓴 내용을 디스크에 둘 자리입니다. 다시 켠 뒤에 다시 읽지 않고 불러옵니다. "
            "가장 오래 쓰지 않은 것부터 지우며, 0이면 끕니다.",
        ),
    )
    disk_format: str = _entry(
        "int8",
        kind="formats",
        group="tiers",
        choices=FORMAT_PAIRS,
        label=("KV format on disk", "디스크의 KV 형식"),
        help=(
            "How keys/values are stored on disk, not below the lowest KV format; what is held in "
            "fewer bits stays so.",
            "키/값을 디스크에 저장하는 형식입니다. 최저 KV 형식보다 낮아지지는 않으며, 이보다 적은 "
            "비트로 둔 것은 그대로 둡니다.",
        ),
    )
    ladder: tuple[str, ...] = _entry(
        RUNGS,
        kind="list",
        group="shortage",
        choices=ALL_RUNGS,
        applies="now",
        label=("When memory is short", "메모리가 모자랄 때"),
        help=(
            "What is done, in this order, when the next step does not fit.",
            "다음 단계가 들어가지 않을 때 이 순서대로 합니다.",
        ),
    )
    evict_by: str = _entry(
        "window",
        kind="choice",
        group="shortage",
        choices=("window", "heavy_hitter"),
        applies="now",
        label=("Of an old turn goes first", "이전 턴에서 먼저 내보낼 것"),
        help=(
            "Which part of old turns is let go when memory is short; their first and newest tokens "
            "always stay. What got little attention is found by looking every 64 tokens.",
            "메모리가 모자랄 때 이전 턴에서 내보낼 부분입니다. 턴의 처음과 마지막 토큰은 항상 "
            "남깁니다. 주목을 적게 받은 부분은 64토큰마다 살펴 찾습니다.",
        ),
    )
    model: str = _entry(
        "smollm2",
        kind="text",
        group="model",
        applies="reload",
        label=("Model", "모델"),
        help=(
            "The built-in model smollm2, or a folder with config.json, safetensors "
            "and a tokenizer.",
            "내장 모델 smollm2, 또는 config.json·safetensors·토크나이저가 든 폴더입니다.",
        ),
    )
    model_folders: tuple[str, ...] = _entry(
        (),
        kind="texts",
        group="model",
        applies="now",
        label=("Folders of models", "모델 폴더"),
        help=(
            "Folders that are a model, or that hold models in folders of their own: what lies "
            "there stands in the list of models. One a line.",
            "모델이 든 폴더, 또는 그런 폴더들이 있는 폴더입니다. 그 안의 모델이 목록에 나옵니다. "
            "한 줄에 하나씩 적습니다.",
        ),
    )
    dtype: str = _entry(
        "auto",
        kind="choice",
        group="model",
        choices=("auto", "fp32", "bf16", "fp16"),
        applies="reload",
        label=("Compute precision", "계산 정밀도"),
        help=(
            "auto: FP32 on a CPU, the model's own on a GPU.",
            "auto: CPU에서는 FP32, GPU에서는 모델 원래 형식입니다.",
        ),
    )
    weights: str = _entry(
        "as-is",
        kind="choice",
        group="model",
        choices=("as-is", "int8"),
        applies="reload",
        label=("Weights", "가중치"),
        help=(
            "INT8 halves the weights' memory or better, at a small cost in quality.",
            "INT8은 가중치 메모리를 절반 이하로 줄이며 품질이 조금 떨어집니다.",
        ),
    )
    threads: int | None = _entry(
        None,
        kind="int",
        group="model",
        optional=True,
        unit="threads",
        least=1,
        most=256,
        label=("CPU threads", "CPU 스레드"),
        help=(
            "Threads for computing on a CPU; auto: torch decides.",
            "CPU 계산 스레드 수. auto면 torch가 정합니다.",
        ),
    )
    max_new_tokens: int = _entry(
        1024,
        kind="int",
        group="sampling",
        unit="tokens",
        least=1,
        most=131072,
        label=("Longest reply", "답의 최대 길이"),
        help=(
            "Room kept for a reply. It shrinks first when the question needs the room.",
            "답을 위해 잡아 두는 자리입니다. 질문에 자리가 필요하면 이것부터 줄입니다.",
        ),
    )
    temperature: float = _entry(
        0.7,
        kind="float",
        group="sampling",
        least=0.0,
        most=5.0,
        label=("Temperature", "온도"),
        help=("0 always takes the likeliest token.", "0이면 항상 가장 그럴듯한 토큰을 고릅니다."),
    )
    top_k: int = _entry(
        0,
        kind="int",
        group="sampling",
        least=0,
        most=1000,
        label=("Top-k", "Top-k"),
        help=("Only the k likeliest tokens; 0 is off.", "가장 그럴듯한 k개만. 0이면 끔."),
    )
    top_p: float = _entry(
        0.95,
        kind="float",
        group="sampling",
        least=0.01,
        most=1.0,
        label=("Top-p", "Top-p"),
        help=(
            "The likeliest tokens that make up this probability; 1 is off.",
            "이 확률을 이루는 토큰만. 1이면 끔.",
        ),
    )
    min_p: float = _entry(
        0.0,
        kind="float",
        group="sampling",
        least=0.0,
        most=1.0,
        label=("Min-p", "Min-p"),
        help=(
            "Drops tokens less likely than this share of the likeliest; 0 is off.",
            "가장 그럴듯한 토큰의 이 비율보다 낮으면 뺍니다. 0이면 끔.",
        ),
    )
    repetition_penalty: float = _entry(
        1.0,
        kind="float",
        group="sampling",
        least=0.5,
        most=2.0,
        label=("Repetition penalty", "반복 벌점"),
        help=(
            "Above 1, tokens already in the text become less likely.",
            "1보다 크면 이미 나온 토큰이 덜 나옵니다.",
        ),
    )
    end_circles: bool = _entry(
        True,
        kind="bool",
        group="sampling",
        label=("End an answer that goes in circles", "맴도는 답 끝내기"),
        help=(
            "Ends an answer that writes the same over and over, after some 256 tokens of it, and "
            "says so. It changes no token. Answers over /v1 are never ended so.",
            "같은 말을 약 256토큰 넘게 되풀이하는 답을 끝내고 알립니다. 토큰을 바꾸지는 않습니다. "
            "/v1의 답은 이렇게 끝내지 않습니다.",
        ),
    )
    seed: int | None = _entry(
        None,
        kind="int",
        group="sampling",
        optional=True,
        least=0,
        most=2**63 - 1,
        label=("Seed", "시드"),
        help=("The same seed gives the same reply.", "같은 시드는 같은 답을 냅니다."),
    )
    document_mode: str = _entry(
        "auto",
        kind="choice",
        group="documents",
        choices=("auto", "whole", "passages"),
        label=("Documents", "문서 읽기"),
        help=(
            "auto: the whole document where it fits, else the passages that suit the question.",
            "auto: 들어가면 문서 전체를, 아니면 질문에 맞는 대목만 읽습니다.",
        ),
    )
    answer_while_reading: bool = _entry(
        True,
        kind="bool",
        group="documents",
        label=("Answer before a file is read whole", "다 읽기 전에 답하기"),
        help=(
            "A question waits up to 10 seconds for files that are still being read or recognised, "
            "then is answered from the pages read so far, and says which; the next question uses "
            "more. Off: it waits for the whole.",
            "아직 읽거나 글자를 알아보는 중인 파일을 질문이 10초까지 기다린 다음, 그때까지 읽은 "
            "쪽으로 답하고 어느 쪽인지 알립니다. 다음 질문은 더 읽은 것을 씁니다. 끄면 다 읽을 "
            "때까지 기다립니다.",
        ),
    )
    ocr: str = _entry(
        "auto",
        kind="choice",
        group="documents",
        choices=("auto", "off"),
        applies="now",
        label=("Text of scanned pages", "스캔한 쪽의 글자"),
        help=(
            "auto: recognised (OCR) in the background where Tesseract is installed. off: pages "
            "that are pictures stay unread, and are named; what was recognised stays.",
            "auto: Tesseract가 설치되어 있으면 뒤에서 글자를 알아봅니다(OCR). off: 그림인 쪽은 "
            "읽지 않고 어느 쪽인지 알립니다. 이미 알아본 글자는 남습니다.",
        ),
    )
    embedding_model: str = _entry(
        "",
        kind="text",
        group="documents",
        label=("Model for meanings", "뜻을 찾는 모델"),
        help=(
            "A folder with a local sentence-embedding model; the search then finds what means the"
            " same in other words. Empty: words only.",
            "문장 임베딩 모델이 있는 폴더. 다른 말로 쓰인 같은 뜻도 찾습니다. 비우면 낱말로만"
            " 찾습니다.",
        ),
    )
    passages: int = _entry(
        5,
        kind="int",
        group="documents",
        least=1,
        most=50,
        label=("Passages a question", "질문마다 대목"),
        help=(
            "How many passages a question may bring along.",
            "질문 하나에 함께 읽는 대목의 최대 수입니다.",
        ),
    )
    system_text: str = _entry(
        "You are a helpful assistant.",
        kind="text",
        group="chat",
        applies="new chat",
        label=("System text", "시스템 글"),
        help=(
            "What the model is told first in each new chat.",
            "새 채팅마다 모델에게 먼저 알려 주는 글입니다.",
        ),
    )
    keep_reasoning: bool = _entry(
        False,
        kind="bool",
        group="chat",
        label=("Keep reasoning in the history", "추론을 대화에 남기기"),
        help=(
            "The model reads again what it thought before earlier replies. It takes much room.",
            "모델이 이전 답 앞에 쓴 추론도 다시 읽습니다. 자리를 많이 차지합니다.",
        ),
    )
    list_api_chats: bool = _entry(
        False,
        kind="bool",
        group="chat",
        applies="now",
        label=("List chats of the API", "API 채팅 보이기"),
        help=("Show chats that came over /v1 in the list.", "/v1로 온 채팅을 목록에 보입니다."),
    )


SCHEMA: Mapping[str, Entry] = {f.name: f.metadata["entry"] for f in fields(Settings)}
