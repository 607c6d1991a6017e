package main

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Which paths end how, for each parser.
var paths = map[string][]string{
	"openai-parser": {
		"chat/completions", "completions", "embeddings", "responses", "conversations", "chat/completions/render", "completions/render",
	},
	"anthropic-parser": {"v1/messages", "v1/messages/count_tokens"},
	"vllmhttp-parser":  {"inference/v1/generate"},
}

// What a body must have, by how its path ends.
var needed = [][2]string{
	{"conversations", "items"}, {"responses", "input"}, {"chat/completions", "messages"}, {"chat/completions/render", "messages"},
	{"v1/messages", "messages"}, {"v1/messages/count_tokens", "messages"}, {"embeddings", "input"}, {"completions", "prompt"},
	{"completions/render", "prompt"}, {"inference/v1/generate", "token_ids"},
}

// body is a request's content: parsed, or only passed on.
type body struct {
	fields        map[string]any
	raw           []byte
	model, prompt string
}

// parserOf returns the parser that takes requests to a path.
func (c *config) parserOf(path string) (string, error) {
	path, _, _ = strings.Cut(path, "?")
	for _, one := range c.parsers {
		if one == "passthrough-parser" {
			return one, nil
		}
		for _, suffix := range paths[one] {
			if endsWith(path, suffix) {
				return one, nil
			}
		}
	}
	return "", fmt.Errorf("no parser registered matching path suffix for: %s", path)
}

func endsWith(path, suffix string) bool {
	return strings.HasSuffix("/"+strings.Trim(path, "/"), "/"+suffix)
}

// parse returns what a request says, or why it is refused.
func (c *config) parse(path string, raw []byte) (*body, error) {
	parser, err := c.parserOf(path)
	if err != nil {
		return nil, err
	}
	if parser == "passthrough-parser" {
		return &body{raw: raw}, nil
	}
	found := &body{raw: raw}
	if err := json.Unmarshal(raw, &found.fields); err != nil {
		return nil, fmt.Errorf("error unmarshaling request bodyMap: %w", err)
	}
	path, _, _ = strings.Cut(path, "?")
	for _, one := range needed {
		if endsWith(path, one[0]) {
			if value, there := found.fields[one[1]]; !there || empty(value) {
				return nil, fmt.Errorf("invalid %s request: must have valid %s field", one[0], one[1])
			}
			found.prompt = text(found.fields[one[1]])
			break
		}
	}
	found.model, _ = found.fields["model"].(string)
	return found, nil
}

func empty(value any) bool {
	switch found := value.(type) {
	case nil:
		return true
	case string:
		return found == ""
	case []any:
		return len(found) == 0
	default:
		return false
	}
}

// text returns all that is said in a value, in its order.
func text(value any) string {
	switch found := value.(type) {
	case string:
		return found
	case []any:
		var parts strings.Builder
		for _, one := range found {
			parts.WriteString(text(one))
		}
		return parts.String()
	case map[string]any:
		role, _ := found["role"].(string)
		if said, there := found["content"]; there {
			return role + text(said)
		}
		return text(found["text"])
	default:
		return ""
	}
}

// packed returns the body as it goes on: a parsed one is written anew, by the name of the model that is asked for.
func (b *body) packed(model string) ([]byte, error) {
	if b.fields == nil {
		return b.raw, nil
	}
	b.fields["model"] = model
	return json.Marshal(b.fields)
}
