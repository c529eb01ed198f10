"""Text for tokens that nobody computed: words, one a token, the same for the same request and seed."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

WORDS: Final = tuple(
    """ the and that with this from they have were which their would there about other these first than then some
 time water more very when what your said each many into long down find could people over only little work know place
 year live back give most after thing name good sentence great where help through much before line right mean same
 three want well also play small home read hand large spell land here must high such follow change light kind need
 house picture again animal point mother world near build self earth father head stand page should country found
 answer school grow study still learn plant cover food four between state keep never last thought city tree cross
 farm hard start might story sea draw left late run while press close night real life few north open seem together
 next white children begin got walk example ease paper group always music those both mark often letter until mile
 river car feet care second book carry took science eat room friend began idea fish mountain stop once base hear
 horse cut sure watch color face wood main enough plain girl usual young ready above ever red list though feel talk
 bird soon body dog family direct leave song measure door product black short numeral class wind question happen
 complete ship area half rock order fire south problem piece told knew pass since top whole king space heard best
 hour better true during hundred five remember step early hold west ground interest reach fast verb sing listen six
 table travel less morning ten simple several vowel toward war lay against pattern slow center love person money
 serve appear road map rain rule govern pull cold notice voice unit power town fine certain fly fall lead cry dark
 machine note wait plan figure star box noun field rest correct able pound done beauty drive stood contain front
 teach week final gave green quick develop ocean warm free minute strong special mind behind clear tail produce
 fact street inch multiply nothing course stay wheel full force blue object decide surface deep moon island foot
 system busy test record boat common gold possible plane dry wonder laugh thousand ago ran check game shape""".split()  # noqa: SIM905  (a list of quoted words is no easier to read)
)
"""Common English words; each stands for one token, with a space before it."""

_PRIME: Final = 7919
_STOPS: Final = (".", ",", ".", ";")


def fingerprint(seed: int, content: bytes) -> int:
    """64 bits that depend on the seed and the request's content, and on nothing else."""
    return int.from_bytes(blake2b(content, digest_size=8, key=seed.to_bytes(8, "big", signed=True)).digest(), "big")


def word(fingerprint: int, index: int) -> str:
    """The text of output token `index`: a space and a word, now and then with a punctuation mark."""
    mixed = (fingerprint + index * _PRIME) * 0x9E3779B97F4A7C15 & 0xFFFF_FFFF_FFFF_FFFF
    text = " " + WORDS[(mixed >> 24) % len(WORDS)]
    return text + _STOPS[(mixed >> 8) % 4] if index % 11 == 10 else text


def text(fingerprint: int, tokens: int) -> str:
    """The text of the first `tokens` output tokens."""
    return "".join(word(fingerprint, i) for i in range(tokens))


def drawn_length(fingerprint: int, median: float, sigma: float) -> int:
    """An output length (tokens, at least 2): log-normal, by the request's fingerprint.

    The defaults of the server, median 129 and sigma 0.93, are those of the Azure 2023 conversation trace.
    """
    from statistics import NormalDist  # noqa: PLC0415  (only requests that do not pin their length need it)

    uniform = ((fingerprint >> 11) + 0.5) / (1 << 53)
    return max(2, int(0.5 + median * 2.718281828459045 ** (sigma * NormalDist().inv_cdf(uniform))))
