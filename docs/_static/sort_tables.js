// Sort the tables inside a "sortable" element: a click on a title sorts by its column, the largest
// number first, and a second click the other way round. Cells without a number stay last.
function sortTable(table, column, direction) {
  const body = table.tBodies[0];
  const key = (row) => parseFloat(row.cells[column].textContent);
  const text = (row) => row.cells[column].textContent;
  const rows = [...body.rows].sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (isNaN(x) && isNaN(y)) return -direction * text(a).localeCompare(text(b));
    if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
    return direction * (y - x);
  });
  body.append(...rows);
}

for (const table of document.querySelectorAll(".sortable table")) {
  const titles = [...table.tHead.rows[0].cells];
  titles.forEach((title, column) => {
    const button = document.createElement("button");
    button.append(...title.childNodes);
    title.append(button);
    button.addEventListener("click", () => {
      const direction = title.getAttribute("aria-sort") === "descending" ? -1 : 1;
      titles.forEach((one) => one.removeAttribute("aria-sort"));
      title.setAttribute("aria-sort", direction > 0 ? "descending" : "ascending");
      sortTable(table, column, direction);
    });
  });
}
