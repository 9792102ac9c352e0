/** One of some values, as a select box. */

export interface IChoiceProps<T> {
  readonly label: string;
  readonly value: T;
  /** Values and what they are called. */
  readonly options: readonly (readonly [T, string])[];
  readonly onChange: (value: T) => void;
}

export function Choice<T>({ label, value, options, onChange }: IChoiceProps<T>): JSX.Element {
  return (
    <select
      aria-label={label}
      value={options.findIndex(([known]) => known === value)}
      onChange={event => onChange(options[Number(event.target.value)][0])}
    >
      {options.map(([, name], place) => (
        <option key={place} value={place}>
          {name}
        </option>
      ))}
    </select>
  );
}
