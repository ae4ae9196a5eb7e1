// SPARQL text: its parts for highlighting, and the prefixes that it lacks.
import { PREFIXES } from "../terms.js";
import { t } from "../texts.js";

const KEYWORDS = new Set((
    "base prefix select construct describe ask distinct reduced as from named where order by asc desc limit offset group "
    + "having values undef union optional minus graph service silent bind filter exists not in a true false count sum "
    + "min max avg sample group_concat separator str lang langmatches datatype bound iri uri bnode rand abs ceil floor "
    + "round concat strlen ucase lcase encode_for_uri contains strstarts strends strbefore strafter year month day hours "
    + "minutes seconds timezone tz now uuid struuid md5 sha1 sha256 sha384 sha512 coalesce if strlang strdt sameterm isiri "
    + "isuri isblank isliteral isnumeric regex substr replace"
).split(" "));

const TOKEN = new RegExp([
    /(?<iri><[^<>"{}|^`\\\s]*>)/,
    /(?<comment>#[^\n]*)/,
    /(?<string>"""[^]*?"""|'''[^]*?'''|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')/,
    /(?<variable>[?$][\p{L}\p{N}_]+)/u,
    /(?<name>(?:[\p{L}][\p{L}\p{N}_.-]*)?:(?:[\p{L}\p{N}_:.%-]*[\p{L}\p{N}_:%-])?)/u,
    /(?<number>(?<![\p{L}\p{N}_])[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)/u,
    /(?<word>[\p{L}_][\p{L}\p{N}_]*)/u,
].map((part) => part.source).join("|"), "gu");

const LONGEST = 20000;

// The text as [kind, part] pairs; kind is "" where nothing is marked. A very long text is not marked.
export function parts(sparql) {
    if (sparql.length > LONGEST) return [["", sparql]];
    const found = [];
    let end = 0;
    for (const match of sparql.matchAll(TOKEN)) {
        let [kind] = Object.entries(match.groups).find(([, value]) => value !== undefined);
        if (kind === "word") kind = KEYWORDS.has(match[0].toLowerCase()) ? "keyword" : "";
        if (match.index > end) found.push(["", sparql.slice(end, match.index)]);
        found.push([kind, match[0]]);
        end = match.index + match[0].length;
    }
    found.push(["", sparql.slice(end)]);
    return found;
}

// The text with a PREFIX line for each known prefix that it uses and does not declare.
export function withPrefixes(sparql) {
    const declared = new Set(Array.from(sparql.matchAll(/\bprefix\s+([\p{L}][\p{L}\p{N}_.-]*)?:/giu), (match) => match[1]));
    const used = parts(sparql).filter(([kind]) => kind === "name").map(([, part]) => part.slice(0, part.indexOf(":")));
    const missing = Object.keys(PREFIXES).filter((prefix) => used.includes(prefix) && !declared.has(prefix));
    return missing.map((prefix) => `PREFIX ${prefix}: <${PREFIXES[prefix]}>\n`).join("") + sparql;
}

export const EXAMPLES = [
    {
        title: t("example.newest"),
        sparql: `SELECT ?feature ?property ?value ?time WHERE {
  ?reading sosa:hasFeatureOfInterest ?feature ;
    sosa:observedProperty ?property ;
    sosa:hasSimpleResult ?value ;
    sosa:resultTime ?time
}`,
    },
    {
        title: t("example.numbers"),
        sparql: `SELECT ?sensor ?value ?time WHERE {
  ?reading sosa:madeBySensor ?sensor ;
    sosa:hasSimpleResult ?value ;
    sosa:resultTime ?time
  FILTER(isNumeric(?value))
}`,
    },
    {
        title: t("example.actuators"),
        sparql: `SELECT ?actuator ?desired ?reported WHERE {
  { ?actuator gateway:desiredState ?desired } UNION { ?actuator lighting:hasStatus ?desired }
  OPTIONAL { ?actuator gateway:reportedState ?reported }
}`,
    },
    {
        title: t("example.offline"),
        sparql: `SELECT ?device ?lastSeen ?reason WHERE {
  ?device gateway:online false
  OPTIONAL { ?device gateway:lastSeen ?lastSeen }
  OPTIONAL { ?device gateway:unreachable ?reason }
}`,
    },
    {
        title: t("example.predicates"),
        sparql: `SELECT ?predicate (COUNT(*) AS ?triples) WHERE {
  ?subject ?predicate ?object
} GROUP BY ?predicate ORDER BY DESC(?triples)`,
    },
    { title: t("example.any"), sparql: "SELECT ?subject ?predicate ?object WHERE {\n  ?subject ?predicate ?object\n} LIMIT 100" },
];
