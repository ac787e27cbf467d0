"""Can a web page recommend without sending what you like?

Fit a model, export it, and write a folder with a page that recommends in the browser: like some
movies, and see the recommendations and the reasons for them change. The page holds the model and
fedrecsk.js, so that it opens with a double click or from a phone's files. Its security policy lets
the page load nothing, send nothing in the background, and run no script but its own, whose text
anyone can read. `fedrecsk.js` and `model.fedrecsk` lie beside it for pages of your own, see
:doc:`/user_guide/browser`.

The movies are generated. With MovieLens-1M in the folder FEDRECSK_DATA they are real ones.
"""

import base64
import hashlib
import os
import tempfile
from pathlib import Path

import numpy as np

from fedrecsk import LocALS
from fedrecsk.datasets import fetch_movielens, make_ratings

MOODS = ["Silent", "Golden", "Haunted", "Lonely", "Electric", "Frozen", "Merry", "Secret", "Wild"]
THINGS = ["Robot", "Heart", "Ghost", "King", "Road", "Dance", "Mountain", "Detective", "Circus"]


def likes_of_movies():
    """Return rows of user and title, for ratings of at least 4."""
    if home := os.environ.get("FEDRECSK_DATA"):
        data = fetch_movielens("1m", features=True, data_home=home)
        X, y, titles = data.data, data.target, data.films["title"]
    else:
        X, y, taste = make_ratings(800, 300, 40_000, item_features=18, random_state=0)
        kinds = taste.to_numpy()
        names = [
            f"The {MOODS[mood]} {THINGS[thing]}"
            for mood, thing in zip(kinds[:, :9].argmax(1), kinds[:, 9:].argmax(1), strict=True)
        ]
        titles = {
            item: name if (part := names[:place].count(name)) == 0 else f"{name} {part + 1}"
            for place, (item, name) in enumerate(zip(taste.index, names, strict=True))
        }
    rows = {
        (str(user), titles[item])
        for (user, item), stars in zip(X[:, :2], y, strict=True)
        if stars >= 4
    }
    return np.array(sorted(rows))


model = LocALS(n_factors=32, random_state=0).fit(likes_of_movies())
folder = Path(tempfile.mkdtemp(prefix="fedrecsk-"))
model.export(folder / "model.fedrecsk", web=True)

# %%
# The page, with plain HTML and CSS. Buttons, a search field and lists are what keyboards and screen
# readers know.

STYLE = """
:root { color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif; }
body { max-width: 64rem; margin: auto; padding: 1rem; }
h1 { line-height: 1.2; margin-block: 0.5rem; }
main { display: grid; gap: 1rem 2.5rem; }
@media (min-width: 48rem) { main { grid-template-columns: 1fr 1fr; } }
input { font: inherit; width: 100%; box-sizing: border-box; padding: 0.5rem; }
#choices { display: flex; flex-wrap: wrap; gap: 0.5rem; padding: 0.25rem; }
#choices { max-height: 38vh; overflow: auto; }
#choices li { list-style: none; }
button { font: inherit; text-align: start; padding: 0.35rem 0.8rem; cursor: pointer; }
button { border: 1px solid #1b95aa; border-radius: 1rem; background: none; color: inherit; }
button[aria-pressed="true"] { background: #136b7a; color: white; }
#best { padding-inline-start: 1.5rem; margin-block: 0.5rem; }
#best li { margin-block-end: 0.6rem; }
small { display: block; opacity: 0.8; }
@media (min-width: 48rem) { #choices { max-height: 60vh; } }
"""

SCRIPT = """
const encoded = document.getElementById("model").textContent;
const model = load(Uint8Array.from(atob(encoded), (letter) => letter.charCodeAt(0)));
const popular = model.recommend([], model.itemIds.length).map(({ item }) => item);
const liked = []; // oldest first
const $ = (id) => document.getElementById(id);

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

function button(item) {
  const made = element("button", item);
  made.type = "button";
  made.setAttribute("aria-pressed", liked.includes(item));
  made.onclick = () => {
    if (liked.includes(item)) liked.splice(liked.indexOf(item), 1);
    else liked.push(item);
    const place = [...$("best").querySelectorAll("button")].indexOf(made);
    show();
    // Who pressed a recommendation goes on where it was.
    if (place >= 0) $("best").querySelectorAll("button")[place]?.focus();
  };
  return made;
}

function reasons(item) {
  const { rows } = model.explain(liked, item);
  const helpful = rows.filter(({ contribution }) => contribution > 0).slice(0, 2);
  if (!helpful.length) return "popular";
  return `because you like ${helpful.map((row) => row.item).join(" and ")}`;
}

function showChoices() {
  const words = $("search").value.toLowerCase();
  const found = popular.filter((item) => item.toLowerCase().includes(words)).slice(0, 40);
  $("choices").replaceChildren(...found.map((item) => element("li", button(item))));
  $("found").textContent = found.length ? "" : "No movie has these letters in its title.";
}

function show() {
  for (const one of $("choices").querySelectorAll("button")) {
    one.setAttribute("aria-pressed", liked.includes(one.textContent));
  }
  const best = model.recommend(liked, 6);
  $("best").replaceChildren(
    ...best.map(({ item }) => element("li", button(item), element("small", reasons(item)))));
  $("status").textContent = `You like ${liked.length} of ${model.itemIds.length} movies.`;
  const requests = performance.getEntriesByType("resource").length;
  const promise = requests ? "" : " What you like stays here.";
  $("sent").textContent = `Requests since then: ${requests}.${promise}`;
}

$("search").oninput = showChoices;
showChoices();
show();
"""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; connect-src 'none';
  form-action 'none'; base-uri 'none'; script-src 'sha256-{script_hash}';
  style-src 'sha256-{style_hash}'">
<title>Movies for you</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>Movies for you</h1>
<p>Press the movies that you like. Your browser computes the recommendations.
Loaded once: {loaded} kB, of them {model_kilobytes} kB for the model. <span id="sent"></span></p>
</header>
<main>
<section aria-labelledby="like">
<h2 id="like">Movies</h2>
<label for="search">Search by title</label>
<input id="search" type="search" autocomplete="off">
<p id="found" role="status"></p>
<ul id="choices"></ul>
</section>
<section aria-labelledby="for-you">
<h2 id="for-you">Recommended</h2>
<p id="status" role="status"></p>
<ol id="best"></ol>
</section>
</main>
<script type="application/octet-stream" id="model">{model}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def hash_of(text):
    """Return what the security policy calls a script or a style that may be there."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


script = (folder / "fedrecsk.js").read_text() + SCRIPT
parts = {"script": script, "style": STYLE}
parts |= {f"{name}_hash": hash_of(text) for name, text in parts.items()}
exported = (folder / "model.fedrecsk").read_bytes()
parts |= {"model": base64.b64encode(exported).decode(), "model_kilobytes": len(exported) // 1000}
page = PAGE.format(**parts, loaded=sum(map(len, (PAGE, STYLE, script, parts["model"]))) // 1000)
(folder / "index.html").write_text(page)
print(
    f"Open {folder / 'index.html'} in a browser: {len(page) // 1000} kB, {model.n_items_} movies."
)
