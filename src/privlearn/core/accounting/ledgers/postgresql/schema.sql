-- The tables of ledgers, and what keeps their rows from being changed. `privlearn ledger` and
-- `Ledger.open` run this once for a database, in one transaction with the first row.
-- Functions and triggers are written as PostgreSQL prints them (pg_get_functiondef and
-- pg_get_triggerdef): what a database has is compared with this file at each opening. A blank line
-- ends a statement.

CREATE SCHEMA privlearn;

CREATE TABLE privlearn.change (
    data text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    at text NOT NULL,
    whole integer NOT NULL CHECK (whole IN (0, 1)),
    content text NOT NULL,
    previous text NOT NULL,
    digest text NOT NULL UNIQUE,
    PRIMARY KEY (data, number)
);

CREATE INDEX wholes ON privlearn.change (data, number) WHERE whole = 1;

CREATE TABLE privlearn.head (
    data text COLLATE "C" PRIMARY KEY,
    number bigint NOT NULL,
    digest text NOT NULL
);

-- The secret that digests of rows of data are keyed with: one for all data sets.
CREATE TABLE privlearn.data_key (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    key text NOT NULL
);

COMMENT ON SCHEMA privlearn IS 'ledgers of privlearn, version 2';

CREATE OR REPLACE FUNCTION privlearn.refuse()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    RAISE EXCEPTION 'rows of a ledger are never changed or deleted'
        USING ERRCODE = 'integrity_constraint_violation';
END
$function$;

-- The row of the head is locked: rows of a data set are judged and appended one after another.
CREATE OR REPLACE FUNCTION privlearn.follow_the_head()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
    last privlearn.head;
BEGIN
    SELECT * INTO last FROM privlearn.head WHERE data = NEW.data FOR UPDATE;
    IF NOT FOUND OR last.number + 1 <> NEW.number OR last.digest <> NEW.previous THEN
        RAISE EXCEPTION 'a row of a ledger follows the last one'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END
$function$;

CREATE OR REPLACE FUNCTION privlearn.move_the_head()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
    UPDATE privlearn.head SET number = NEW.number, digest = NEW.digest WHERE data = NEW.data;
    RETURN NULL;
END
$function$;

CREATE OR REPLACE FUNCTION privlearn.keep_the_head()
 RETURNS trigger
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
    IF NEW.data <> OLD.data OR NEW.number <> OLD.number + 1 OR NOT EXISTS (
        SELECT 1 FROM privlearn.change
        WHERE data = NEW.data AND number = NEW.number AND digest = NEW.digest
    ) THEN
        RAISE EXCEPTION 'the head of a ledger is its last row'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END
$function$;

CREATE OR REPLACE FUNCTION privlearn.begin_without_rows()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
    IF NEW.number <> 0 OR NEW.digest <> repeat('0', 64) THEN
        RAISE EXCEPTION 'a data set has one head, and begins without rows'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END
$function$;

-- Others could let these functions, which act for the owner, act on tables of their own.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA privlearn FROM PUBLIC;

CREATE TRIGGER changes_are_kept BEFORE DELETE OR UPDATE ON privlearn.change FOR EACH ROW EXECUTE FUNCTION privlearn.refuse();

CREATE TRIGGER changes_are_not_truncated BEFORE TRUNCATE ON privlearn.change FOR EACH STATEMENT EXECUTE FUNCTION privlearn.refuse();

CREATE TRIGGER changes_follow_the_last_one BEFORE INSERT ON privlearn.change FOR EACH ROW EXECUTE FUNCTION privlearn.follow_the_head();

CREATE TRIGGER the_head_is_the_last_row AFTER INSERT ON privlearn.change FOR EACH ROW EXECUTE FUNCTION privlearn.move_the_head();

CREATE TRIGGER a_data_set_begins_without_rows BEFORE INSERT ON privlearn.head FOR EACH ROW EXECUTE FUNCTION privlearn.begin_without_rows();

CREATE TRIGGER the_head_goes_on BEFORE UPDATE ON privlearn.head FOR EACH ROW EXECUTE FUNCTION privlearn.keep_the_head();

CREATE TRIGGER the_head_is_kept BEFORE DELETE ON privlearn.head FOR EACH ROW EXECUTE FUNCTION privlearn.refuse();

CREATE TRIGGER the_head_is_not_truncated BEFORE TRUNCATE ON privlearn.head FOR EACH STATEMENT EXECUTE FUNCTION privlearn.refuse();

CREATE TRIGGER the_key_is_kept BEFORE DELETE OR UPDATE ON privlearn.data_key FOR EACH ROW EXECUTE FUNCTION privlearn.refuse();

CREATE TRIGGER the_key_is_not_truncated BEFORE TRUNCATE ON privlearn.data_key FOR EACH STATEMENT EXECUTE FUNCTION privlearn.refuse();

ALTER TABLE privlearn.change ENABLE ALWAYS TRIGGER changes_are_kept;

ALTER TABLE privlearn.change ENABLE ALWAYS TRIGGER changes_are_not_truncated;

ALTER TABLE privlearn.change ENABLE ALWAYS TRIGGER changes_follow_the_last_one;

ALTER TABLE privlearn.change ENABLE ALWAYS TRIGGER the_head_is_the_last_row;

ALTER TABLE privlearn.head ENABLE ALWAYS TRIGGER a_data_set_begins_without_rows;

ALTER TABLE privlearn.head ENABLE ALWAYS TRIGGER the_head_goes_on;

ALTER TABLE privlearn.head ENABLE ALWAYS TRIGGER the_head_is_kept;

ALTER TABLE privlearn.head ENABLE ALWAYS TRIGGER the_head_is_not_truncated;

ALTER TABLE privlearn.data_key ENABLE ALWAYS TRIGGER the_key_is_kept;

ALTER TABLE privlearn.data_key ENABLE ALWAYS TRIGGER the_key_is_not_truncated;
