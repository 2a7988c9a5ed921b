"""Draws the README's picture, the two columns of the page of Algorithm 4, with Chromium: `make picture`.

The fonts are those that come with matplotlib, so that the picture does not depend on the machine.
"""

import subprocess
import sys
from pathlib import Path

import matplotlib
from PIL import Image, ImageChops

from training.commands.crosscheck import main

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "pictures" / "algorithm-4.png"
WIDTH, HEIGHT, MARGIN = 900, 1400, 24
FONTS = {
    ("Text", "normal", "normal"): "STIXGeneral",
    ("Text", "italic", "normal"): "STIXGeneralItalic",
    ("Text", "normal", "bold"): "STIXGeneralBol",
    ("Code", "normal", "normal"): "DejaVuSansMono",
}
"""Family, style and weight → the file's name."""
STYLE = """
:root { --serif: "Text"; --mono: "Code"; }
html { font-size: 112%; }
math { font-family: "Text"; }
nav.pages, header, footer, .inputs, main > section { display: none; }
body { padding: 0 1.2rem; max-width: none; }
.sides { grid-template-columns: minmax(0, 9fr) minmax(0, 14fr); gap: 0 1.4rem; }
.sides > * { margin-top: 0; }
.row .at { display: none; }
.row .back { flex-basis: 2.2rem; }
"""


def draw() -> None:
    """Write the picture."""
    folder = ROOT / "build" / "picture"
    main(["--algorithm", "4", "--implementation", "paper", "--html", str(folder)])
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    faces = "".join(
        f'@font-face {{ font-family: "{family}"; font-style: {style}; font-weight: {weight}; '
        f'src: url("{(fonts / name).as_uri()}.ttf"); }}\n'
        for (family, style, weight), name in FONTS.items()
    )
    text = (folder / "algorithm-4.html").read_text("utf-8")
    page = folder / "picture.html"
    page.write_text(text.replace("</head>", f"<style>{faces}{STYLE}</style></head>"), "utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=2"]
    options += [f"--window-size={WIDTH},{HEIGHT}", "--allow-file-access-from-files", f"--screenshot={PICTURE}"]
    subprocess.run(["chromium", *options, page.as_uri()], check=True)
    with Image.open(PICTURE) as image:
        whole = image.convert("RGB")
    ground = Image.new("RGB", whole.size, whole.getpixel((0, 0)))
    left, top, right, bottom = ImageChops.difference(whole, ground).getbbox() or (0, 0, *whole.size)
    around = (max(0, left - MARGIN), max(0, top - MARGIN), right + MARGIN, bottom + MARGIN)
    whole.crop(around).save(PICTURE, optimize=True)


if __name__ == "__main__":
    sys.exit(draw())
